CREATE TRIGGER <<trigger>> AFTER <<event>> ON <<table>> FOR EACH ROW
BEGIN
<<calls>>
END
